# The folders of headers, from the repository's: the library's own first, then those that an engine does not include.
set(kvmeld_header_folders include testing/include tools/calibrate/include)
