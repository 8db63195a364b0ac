"""What is carried to another machine. Start from `zipapp.build`, the doctor in one file."""
