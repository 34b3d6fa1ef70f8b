"""`python -m outrider_cli` is the `outrider` command."""

from outrider_cli.main import app

app(prog_name="outrider")
