"""Study of roles: long prompts among short chats, on engines that do both and on engines with roles."""
