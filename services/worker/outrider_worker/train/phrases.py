"""The words that built-in training prompts are put together from."""

THINGS = (
    "lantern", "kettle", "compass", "ladder", "blanket", "violin", "notebook", "candle", "basket",
    "hammer", "mirror", "telescope", "umbrella", "wallet", "suitcase", "guitar", "camera", "helmet",
    "bucket", "scarf", "chessboard", "pillow", "radio", "teapot", "wheelbarrow", "whistle",
)  # fmt: skip
PEOPLE = (
    "Anna", "Ben", "Clara", "David", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kemal",
    "Lina", "Marco", "Nadia", "Oscar", "Priya", "Quentin", "Rosa", "Samir", "Tara", "Victor",
)  # fmt: skip
PLACES = (
    "market", "library", "museum", "harbour", "school", "bakery", "station", "garden", "airport",
    "theatre", "hospital", "forest", "village", "factory", "stadium", "castle", "bridge", "farm",
)  # fmt: skip
ACTIONS = (
    "carried", "found", "sold", "painted", "repaired", "borrowed", "lost", "cleaned", "measured",
    "photographed", "wrapped", "dropped", "hid", "bought", "returned", "moved",
)  # fmt: skip
TIMES = (
    "on Monday morning", "late in the evening", "before lunch", "in early spring", "at midnight",
    "during the storm", "after the concert", "every Thursday", "last winter", "at noon",
)  # fmt: skip
TOPICS = (
    "volcanoes", "photosynthesis", "the water cycle", "gravity", "earthquakes", "recycling",
    "the human heart", "black holes", "inflation", "democracy", "the internet", "electric cars",
    "vaccines", "the Roman Empire", "the French Revolution", "jazz music", "chess openings",
    "solar panels", "coral reefs", "dinosaurs", "the moon", "rainbows", "magnets", "bees",
    "coffee", "chocolate", "the stock market", "time zones", "the printing press", "airplanes",
    "submarines", "rockets", "glaciers", "deserts", "the Amazon rainforest", "penguins",
    "elephants", "migration of birds", "the immune system", "sleep", "dreams", "memory",
    "the brain", "exercise", "a balanced diet", "vitamins", "allergies", "headaches", "stress",
    "meditation", "public speaking", "job interviews", "time management", "team work", "leadership",
    "remote work", "saving money", "credit cards", "mortgages", "taxes", "insurance",
    "small businesses", "marketing", "online shopping", "data privacy", "passwords",
    "machine learning", "neural networks", "databases", "operating systems", "web browsers",
    "programming languages", "version control", "unit tests", "encryption", "cloud computing",
    "robots", "3D printing", "virtual reality", "video games", "photography", "oil painting",
    "poetry", "novels", "theatre", "opera", "dance", "football", "tennis", "running", "yoga",
    "hiking", "camping", "sailing", "cooking pasta", "making soup", "growing tomatoes",
    "composting", "keeping chickens", "training a dog", "adopting a cat", "learning a language",
    "playing the piano",
    "writing an essay", "reading faster", "planning a trip", "packing a suitcase", "moving house",
    "painting a room", "fixing a leaking tap", "first aid", "fire safety", "road safety",
)  # fmt: skip
KINDS = (
    "fruits", "vegetables", "European capitals", "musical instruments", "planets", "mammals",
    "board games", "programming languages", "winter sports", "kitchen tools", "rivers", "trees",
    "healthy breakfasts", "holiday destinations", "colours", "insects", "famous scientists",
    "novels for children", "exercises for the back", "ways to save water", "ways to save energy",
    "questions for an interview", "gifts for a friend", "names for a cat", "rainy-day activities",
    "habits of good students", "uses for old newspapers", "steps to start a blog", "safety rules",
    "vegetarian dishes", "weekend hobbies", "reasons to read books", "tips for better sleep",
)  # fmt: skip
FUNCTIONS = (
    ("largest", "numbers", "returns the largest number in a list"),
    ("average", "values", "returns the mean of a list of numbers"),
    ("factorial", "n", "returns the factorial of n"),
    ("fibonacci", "n", "returns the first n Fibonacci numbers"),
    ("is_prime", "n", "tells whether n is a prime number"),
    ("count_vowels", "word", "counts the vowels in a word"),
    ("remove_duplicates", "items", "removes duplicates from a list and keeps the order"),
    ("to_fahrenheit", "celsius", "converts degrees Celsius to Fahrenheit"),
    ("is_palindrome", "word", "tells whether a word is a palindrome"),
    ("merge", "left, right", "merges two sorted lists into one sorted list"),
    ("flatten", "nested", "flattens a list of lists"),
    ("most_common", "items", "returns the element that occurs most often"),
    ("read_lines", "path", "reads a file and returns its lines without line breaks"),
    ("write_json", "path, data", "writes a dictionary to a JSON file"),
    ("parse_date", "text", "parses a date such as 2024-05-17 into year, month and day"),
    ("gcd", "a, b", "returns the greatest common divisor of two numbers"),
    ("binary_search", "items, target", "searches a sorted list for a target"),
    ("bubble_sort", "items", "sorts a list by bubble sort"),
    ("group_by_length", "words", "groups words by their length in a dictionary"),
    ("transpose", "matrix", "transposes a matrix given as a list of rows"),
    ("word_frequencies", "text", "counts how often each word occurs"),
    ("capitalize_words", "sentence", "capitalises the first letter of every word"),
    ("sum_of_digits", "n", "adds up the digits of a number"),
    ("power", "base, exponent", "computes a power without the operator for it"),
    ("chunks", "items, size", "splits a list into pieces of a given size"),
    ("second_largest", "numbers", "returns the second largest number"),
    ("is_leap_year", "year", "tells whether a year is a leap year"),
    ("to_binary", "n", "converts a number to a string of binary digits"),
)  # fmt: skip
LANGUAGES = ("Python", "Python", "Python", "JavaScript", "Java", "C")
FIELDS = (
    "name", "age", "city", "email", "price", "quantity", "colour", "weight_kg", "in_stock",
    "category", "author", "year", "pages", "rating", "country", "phone",
)  # fmt: skip
TONES = ("formal", "friendly", "shorter", "simpler", "more polite", "more exciting")
