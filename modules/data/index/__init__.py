"""Step 1, the index: `scan` lists the files of a concept, `captions` and `images` read them, `concept_rows` makes them
rows and reuses what the last index knew, `build` joins the concepts and stores the table, `index` maps it."""
