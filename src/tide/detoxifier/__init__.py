"""The public interface: in one thread, with asyncio, or over a cluster; and presets."""
