"""The `kagzi` command. Nothing here is imported by `import kagzi`."""
