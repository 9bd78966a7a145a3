from maskwright.cli.app import main

main()
