"""Code shared by the baselines: decoding, fits, artefacts, access to layers."""
