"""What does a case keep, how does it get there, and is it still what it was?"""
