"""Twenty clients, four hidden groups: cluster them by what they say of their data, then train."""

import flameche

digits = {"dataset": "digits", "clients": 20, "per_label": 6, "heterogeneity": "csf", "label_skew": False}
experiment = flameche.experiment("quickstart", rounds=30, participation=0.5, data=digits)

found = flameche.cluster(experiment, seed=0)  # metadata and clustering only
print(f"{found['k']} clusters, ARI {found['ari']:.2f}, DBI {found['dbi']:.2f}")

trained = flameche.run(experiment, seed=0, out="runs")  # the same clusters, and their models
print(f"accuracy {100 * trained['accuracy']:.0f}%, {trained['bytes_up'] / 1e6:.1f} MB up")
print("report:", flameche.write_report("runs/quickstart", "runs/quickstart"))
