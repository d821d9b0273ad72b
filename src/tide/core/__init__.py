"""Plain data and input validation: settings, results, chats, errors, HTTP."""
