# promise: A text of megabytes is looked at in no more than the time of a job.
# right: correct no_kernel load_error runtime_error deceptive out_of_memory timeout
# tags: slow text
#repeat 60000||# a comment that goes on for a while, and says nothing~|
#repeat 100000|x = "|(<{[|"
