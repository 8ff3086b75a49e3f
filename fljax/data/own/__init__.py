"""A user's own data: tables, arrays, images and folders of clients."""
