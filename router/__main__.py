import sys

from bunqueue.server.host.process_arguments import name_process

from .start import main

name_process("bunqueue router")
sys.exit(main(sys.argv[1:]))
