"""Is a live run still healthy?"""
