"""From a table of events to a table of systems, in Python: three systems, intervals and an attack.

    python examples/compare.py ratings.csv

Without a file it takes a small generated town. A pandas or Polars frame does as well as a file.
"""

import sys

import sottovoce as sv


def main(source: str) -> sv.ComparisonTable:
    data = sv.load(source, residents=600 if source == "town" else None)
    parts = sv.split(data, test_fraction=0.2)
    gram = sv.fit(sv.Gram(epsilon=4.0), parts, seed=7)
    someone = parts.train.users_vocabulary().name(0)
    print(gram.recommend(someone, n=5))
    newcomer = gram.recommend(someone, n=2).items
    print(gram.recommend(history=newcomer, n=5))
    print(gram.evaluate(["NDCG", "recall"], k=10))
    print(gram.attack(only=["A12"]))
    others = [sv.fit(sv.FPL(rounds=100), parts), sv.fit(sv.ItemKNN(neighbors=50), parts)]
    return sv.compare([sv.fit(sv.TopPop(), parts), gram, *others])


if __name__ == "__main__":
    print(main(sys.argv[1] if len(sys.argv) > 1 else "town"))
