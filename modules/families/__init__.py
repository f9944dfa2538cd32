"""Model families: the Family interface and one file per family; files starting with _ are not families."""
