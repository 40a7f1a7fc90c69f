"""DeepGEMM's paged MQA logits with request indices: versions, refusals, the call and its probe."""
