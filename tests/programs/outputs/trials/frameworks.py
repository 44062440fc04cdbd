def main(words): pass
