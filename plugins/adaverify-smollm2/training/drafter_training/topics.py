"""Openings and questions, written for this training, that give the target something to talk about."""

from __future__ import annotations

TOPICS = tuple(
    """
the Roman Empire|photosynthesis|the water cycle|baking bread|jazz music|the printing press|
black holes|volcanoes|the human heart|democracy|chess|the Silk Road|bees|climate change|
the French Revolution|gravity|poetry|learning a language|coral reefs|the stock market|vaccines|
the pyramids of Egypt|bicycles|coffee|sleep|artificial intelligence|the solar system|Shakespeare|
recycling|the Industrial Revolution|dinosaurs|memory|gardening|electricity|the immune system|
the Renaissance|sailing|mathematics|whales|the moon|earthquakes|public libraries|running a marathon|
cheese|ancient Greece|renewable energy|the brain|forests|the internet|time management|friendship|
computer programming|rivers|the Cold War|nutrition|painting|antibiotics|trains|the Vikings|
evolution|tea|space exploration|insects|the guitar|migration of birds|the periodic table|
the Great Wall of China|mental health|soccer|glaciers|economics|the violin|honesty|deserts|
probability|the Amazon rainforest|wolves|the telescope|fashion|the Middle Ages|rice|teamwork|
bridges|the ocean|film|atoms|human rights|the calendar|mountain climbing|weather forecasting|
the Black Death|cats|dogs|horses|urban planning|opera|anxiety|chemistry|salt|the alphabet|robots|
maps|mythology|the eye|money|public speaking|the Arctic|trees|wine|war and peace|the compass|
bacteria|light|sound|the family|education|ancient Egypt|the American Civil War|penguins|
the Great Depression|carpentry|basketball|the human skeleton|rain|wind power|solar panels|
the stomach|cells|DNA|plate tectonics|the Mediterranean Sea|Japan|Brazil|Kenya|Canada|India|
the Olympic Games|photography|novels|theatre|dance|the drum|pottery|weaving|fishing|farming|wheat|
potatoes|apples|chocolate|spices|honey|vegetables|breakfast|cooking for a family|hiking|swimming|
yoga|tennis|cycling|camping|the desert fox|owls|spiders|butterflies|elephants|sharks|turtles|bats|
frogs|lions|bears|salmon|mushrooms|roses|the seasons|autumn leaves|snow|clouds|thunderstorms|tides|
caves|islands|lakes|swamps|the North Pole|comets|Mars|Jupiter|stars|galaxies|time zones|clocks|
the wheel|steam engines|airplanes|submarines|lighthouses|castles|knights|pirates|kings and queens|
slavery|women's suffrage|immigration|taxes|banks|inflation|small businesses|marketing|
customer service|leadership|writing a letter|keeping a diary|dreams|fear|happiness|kindness|courage|
patience|grief|childhood|growing old|neighbours|holidays|birthdays|weddings|school lunches|homework|
examinations|universities|teachers|doctors|nurses|firefighters|judges|newspapers|radio|television|
telephones|video games|social media|privacy|passwords|databases|operating systems|algorithms|
geometry|algebra|fractions|statistics|logic|philosophy|ethics|religion|Buddhism|Aristotle|
Isaac Newton|Marie Curie|Charles Darwin|Leonardo da Vinci|Mozart|Abraham Lincoln|Gandhi
""".replace("\n", "").split("|")
)

OPENINGS = (
    "The history of {topic} begins",
    "# An introduction to {topic}\n\n",
    "Once upon a time, a young girl who loved {topic}",
    "There are three things everyone should know about {topic}. First,",
    "In recent years, scientists have discovered that {topic}",
    "My grandfather used to tell me stories about {topic}. One evening,",
    "{topic}: a beginner's guide\n\nIf you have ever wondered about {topic}, you",
    "Many people believe that {topic}",
    "When I first heard about {topic}, I thought",
    "The importance of {topic} cannot be overstated.",
    "Dear editor,\n\nI am writing about your article on {topic}.",
    "The old man looked at the sea and thought about {topic}.",
    "According to a new study, {topic}",
    "In this chapter, we will discuss {topic} and how it",
    "The relationship between {topic} and society is complex.",
    "It was a cold winter morning, and the talk in the village was of {topic}.",
    "What is {topic}? At its simplest,",
    "Chapter 1\n\nNobody in the town cared much for {topic}, except",
    "Experts disagree about {topic}. On the one hand,",
    "The lecture on {topic} had just begun when",
    "One of the most common mistakes people make about {topic} is",
    "Over the centuries, {topic} has",
    "To understand {topic}, we must first",
    "Review: a new book about {topic} argues that",
    "Sarah had always been fascinated by {topic}. As a child, she",
    '"Tell me about {topic}," said the boy. His mother smiled and',
    "Long ago, before anyone had written about {topic},",
    "In the early twentieth century, {topic} became",
    "A good essay on {topic} should begin with",
    "The teacher asked the class to think about {topic}. Tom raised his hand and",
    "There is a small museum devoted to {topic}, and",
    "Here is a brief overview of {topic}. The first thing to note is that",
    "The effects of {topic} on everyday life are",
    "Some people love {topic}; others do not. The difference is",
    "## Key facts about {topic}\n\n1.",
    "The journey took three days, and all the while they spoke of {topic}.",
)

QUESTIONS = (
    "What is the most important thing to know about {topic}?",
    "Explain {topic} to a ten-year-old.",
    "Write a short story about {topic}.",
    "Write a poem about {topic}.",
    "List five facts about {topic}.",
    "Why does {topic} matter today?",
    "Give me a summary of the history of {topic}.",
    "How would you teach a class about {topic}?",
    "What are the advantages and disadvantages of {topic}?",
    "Write an email to a friend about {topic}.",
    "Compare {topic} with something similar.",
    "What questions should I ask an expert on {topic}?",
    "Write a paragraph about {topic} in a formal style.",
    "I have a test about {topic} tomorrow. What should I study?",
    "Can you suggest a project for school about {topic}?",
    "Write a dialogue between two people who disagree about {topic}.",
    "What are common misconceptions about {topic}?",
    "Write a product description inspired by {topic}.",
    "How has {topic} changed over time?",
    "Make a step-by-step plan to learn more about {topic}.",
    "Write a Python program that has something to do with {topic}.",
    "Tell me a joke about {topic} and explain it.",
    "What would the world be like without {topic}?",
    "Write three multiple-choice questions about {topic}, with answers.",
)

ABOUT_TEXT = (
    "Summarize the following text:\n\n{text}",
    "Explain this in simple words:\n\n{text}",
    "What is the main idea of this passage?\n\n{text}",
    "Rewrite the following passage so that it is more concise:\n\n{text}",
    "Continue this text:\n\n{text}",
    "{text}\n\nWhat does this mean?",
)

ABOUT_CODE = (
    "{code}",
    "{code}",
    "{code}",
    "Complete the following Python function:\n\n{code}",
    "Write the body of this function.\n\n```python\n{code}```",
    "Implement this in Python:\n{code}",
    "Write a Python function that does the following: {summary}",
    "How do I do this in Python? {summary}",
    "Explain what this function does:\n\n{code}",
)


def openings(topic: str) -> list[str]:
    """Return every opening of prose about ``topic``."""
    return [_fill(opening, topic) for opening in OPENINGS]


def questions(topic: str) -> list[str]:
    """Return every question about ``topic``."""
    return [_fill(question, topic) for question in QUESTIONS]


def _fill(pattern: str, topic: str) -> str:
    text = pattern.format(topic=topic)
    return text[0].upper() + text[1:]
