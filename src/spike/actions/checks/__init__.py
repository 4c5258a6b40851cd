"""What can files tell without a GPU?"""
