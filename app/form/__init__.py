"""Forms made from the declarations: one module for each kind of field."""
