"""DeepGEMM's paged MQA logits behind one adapter: what versions differ in, checked and absorbed."""
