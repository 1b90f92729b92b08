"""What there is: plain typed data, and the table of states each thing may go through."""
