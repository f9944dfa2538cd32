"""Images on S3, web servers and the Hugging Face hub: copied to this machine before a run reads them."""
