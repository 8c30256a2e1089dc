"""The Store for people: tables, verdicts, figures and a page that shows them."""
