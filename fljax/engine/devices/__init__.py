"""How clients are mapped to devices and lanes, and what devices hold."""
