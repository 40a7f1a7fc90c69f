"""SmolLM2-135M as a real small target model, with a block drafter and a confidence head."""
