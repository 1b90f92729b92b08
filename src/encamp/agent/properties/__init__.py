"""Properties: what an agent reads about its host, each on its tick, by plug-ins."""
