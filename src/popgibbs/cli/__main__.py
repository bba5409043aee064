from popgibbs.cli import main

main()
