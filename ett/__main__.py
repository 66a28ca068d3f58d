from ett.cli import main

main()
