"""What the baselines share: their decoding, fits, artefacts and the layers they reach into."""
