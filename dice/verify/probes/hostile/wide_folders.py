# promise: Tens of thousands of folders beside one another and in one another are removed.
# alone: runtime_error timeout
# right: correct runtime_error timeout deceptive
# tags: slow files
here = os.getcwd()
try:
    for number in range(300):
        os.mkdir(f"d{number}")
        os.chdir(f"d{number}")
        for inner in range(60):
            os.mkdir(f"e{inner}")
        if number % 3 == 0:
            os.chdir(here)
except OSError:
    pass
os.chdir(here)
time.sleep(0.5)
