"""The public interface: synchronous, asyncio and cluster detoxifiers, and their presets."""
