"""Who may connect and who may call: certificates, tokens, roles, rules, the audit log."""
