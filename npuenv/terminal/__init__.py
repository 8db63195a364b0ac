"""How a command line speaks and ends, without click: what the commands share with the doctor's single file."""
