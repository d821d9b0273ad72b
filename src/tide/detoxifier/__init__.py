"""The doors: what callers use, in one thread, with asyncio, or over a cluster; and presets."""
