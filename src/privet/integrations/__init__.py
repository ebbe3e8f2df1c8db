"""Bridges to other libraries, one file each. The core never imports them; most need an extra of their own."""
