"""MCP servers as tools and as context, through the official SDK, which is loaded when a server is
first needed.
"""

from evaluator.tools.mcp.servers import McpHeader, McpServer

__all__ = ["McpHeader", "McpServer"]
