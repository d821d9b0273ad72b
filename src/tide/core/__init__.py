"""Plain data and the checks at the gates: settings, results, chats, errors, HTTP."""
