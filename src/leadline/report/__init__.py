"""What people read: figures and pages made from tables. Nothing here computes a result."""
