"""Foursquare's old category tree (about 2012 to 2014), flattened to its nine top categories.

Written from knowledge of the tree, not compared with an official copy; `docs/data.md` has a check.
The TIST2015 files name only the leaf category of a venue; the papers report by top category.
Names are matched loosely (case, accents, punctuation), because the files carry damaged letters.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from typing import Final

from sottovoce.data.dataset import Dataset

ARTS: Final = "Arts & Entertainment"
COLLEGE: Final = "College & University"
FOOD: Final = "Food"
NIGHTLIFE: Final = "Nightlife Spot"
OUTDOORS: Final = "Outdoors & Recreation"
PROFESSIONAL: Final = "Professional & Other Places"
RESIDENCE: Final = "Residence"
SHOP: Final = "Shop & Service"
TRAVEL: Final = "Travel & Transport"

TOP_CATEGORIES: Final = (
    ARTS,
    COLLEGE,
    FOOD,
    NIGHTLIFE,
    OUTDOORS,
    PROFESSIONAL,
    RESIDENCE,
    SHOP,
    TRAVEL,
)

_LEAVES: Final[dict[str, str]] = {
    ARTS: """
        Amphitheater | Aquarium | Arcade | Art Gallery | Art Museum | Baseball Stadium
        Basketball Stadium | Bowling Alley | Casino | Circus | Comedy Club | Concert Hall
        Country Dance Club | Cricket Ground | Dance Studio | Disc Golf | Drive-in Theater
        Erotic Museum | Exhibit | Football Stadium | General Entertainment | Go Kart Track
        Historic Site | History Museum | Hockey Arena | Indie Movie Theater | Indie Theater
        Jazz Club | Laser Tag | Memorial Site | Mini Golf | Movie Theater | Multiplex | Museum
        Music Venue | Opera House | Outdoor Sculpture | Performing Arts Venue | Piano Bar
        Planetarium | Pool Hall | Public Art | Racetrack | Rock Club | Rugby Stadium | Salsa Club
        Science Museum | Soccer Stadium | Stadium | Street Art | Tennis Stadium | Theater
        Theme Park | Theme Park Ride / Attraction | Track Stadium | Water Park | Zoo | Zoo Exhibit
    """,
    COLLEGE: """
        College Academic Building | College Administrative Building | College Arts Building
        College Auditorium | College Baseball Diamond | College Basketball Court
        College Bookstore | College Cafeteria | College Classroom
        College Communications Building | College Cricket Pitch | College Engineering Building
        College Football Field | College Gym | College History Building | College Hockey Rink
        College Lab | College Library | College Math Building | College Quad
        College Rec Center | College Residence Hall | College Science Building
        College Soccer Field | College Stadium | College Technology Building
        College Tennis Court | College Theater | College Track | Community College
        Fraternity House | General College & University | Law School | Medical School
        Sorority House | Student Center | Trade School | University
    """,
    FOOD: """
        Acehnese Restaurant | Afghan Restaurant | African Restaurant | American Restaurant
        Anhui Restaurant | Arepa Restaurant | Argentinian Restaurant | Asian Restaurant
        Australian Restaurant | Austrian Restaurant | Bagel Shop | Bakery | Balinese Restaurant
        BBQ Joint | Beijing Restaurant | Belarusian Restaurant | Belgian Restaurant
        Betawinese Restaurant | Bistro | Blini House | Borek Place | Brasserie
        Brazilian Restaurant | Breakfast Spot | Bubble Tea Shop | Buffet | Burger Joint
        Burrito Place | Cafeteria | Café | Cajun / Creole Restaurant | Cambodian Restaurant
        Cantonese Restaurant | Caribbean Restaurant | Caucasian Restaurant | Chinese Restaurant
        Churrascaria | Cigkofte Place | Coffee Shop | Comfort Food Restaurant | Creperie
        Cuban Restaurant | Cupcake Shop | Currywurst Joint | Czech Restaurant | Deli / Bodega
        Dessert Shop | Dim Sum Restaurant | Diner | Distillery | Doner Restaurant
        Dongbei Restaurant | Donut Shop | Dumpling Restaurant | Eastern European Restaurant
        Empanada Restaurant | English Restaurant | Ethiopian Restaurant | Falafel Restaurant
        Fast Food Restaurant | Filipino Restaurant | Fish & Chips Shop | Fish Taverna
        Fondue Restaurant | Food Court | Food Stand | Food Truck | French Restaurant
        Fried Chicken Joint | Frozen Yogurt | Fujian Restaurant | Gastropub | German Restaurant
        Gluten-free Restaurant | Gozleme Place | Greek Restaurant | Guangxi Restaurant
        Guizhou Restaurant | Hainan Restaurant | Hakka Restaurant | Halal Restaurant
        Hawaiian Restaurant | Henan Restaurant | Himalayan Restaurant | Home Cooking Restaurant
        Hong Kong Restaurant | Hot Dog Joint | Hotpot Restaurant | Huaiyang Restaurant
        Hubei Restaurant | Hunan Restaurant | Hungarian Restaurant | Ice Cream Shop
        Imperial Restaurant | Indian Chinese Restaurant | Indian Restaurant
        Indonesian Meatball Place | Indonesian Restaurant | Irish Pub | Israeli Restaurant
        Italian Restaurant | Japanese Curry Restaurant | Japanese Restaurant
        Javanese Restaurant | Jewish Restaurant | Jiangsu Restaurant | Jiangxi Restaurant
        Juice Bar | Kafenio | Kaiseki Restaurant | Kebab Restaurant | Kofte Place
        Kokoretsi Restaurant | Korean Restaurant | Kosher Restaurant | Kushikatsu Restaurant
        Latin American Restaurant | Lebanese Restaurant | Mac & Cheese Joint | Macanese Restaurant
        Magirio | Malaysian Restaurant | Manadonese Restaurant | Manchu Restaurant
        Manti Place | Mediterranean Restaurant | Mexican Restaurant | Meyhane | Meze Restaurant
        Middle Eastern Restaurant | Modern European Restaurant | Modern Greek Restaurant
        Molecular Gastronomy Restaurant | Mongolian Restaurant | Moroccan Restaurant
        Nabe Restaurant | New American Restaurant | North Indian Restaurant | Noodle House
        Okonomiyaki Restaurant | Ouzeri | Padangnese Restaurant | Paella Restaurant
        Pakistani Restaurant | Patisserie | Pelmeni House | Persian Restaurant
        Peruvian Restaurant | Pide Place | Pie Shop | Pizza Place | Polish Restaurant
        Portuguese Restaurant | Poutine Place | Ramen / Noodle House | Restaurant
        Romanian Restaurant | Russian Restaurant | Salad Place | Sandwich Place
        Scandinavian Restaurant | Seafood Restaurant | Shabu-Shabu Restaurant
        Shandong Restaurant | Shanghai Restaurant | Shanxi Restaurant | Snack Place
        Soba Restaurant
        Soup Place | South American Restaurant | South Indian Restaurant
        Southern / Soul Food Restaurant | Souvlaki Shop | Spanish Restaurant
        Sri Lankan Restaurant | Steakhouse | Sukiyaki Restaurant | Sundanese Restaurant
        Sushi Restaurant | Swiss Restaurant | Szechuan Restaurant | Taco Place
        Taiwanese Restaurant | Takoyaki Place | Tapas Restaurant | Tatar Restaurant | Taverna
        Tea Room | Tempura Restaurant | Thai Restaurant | Tianjin Restaurant
        Tibetan Restaurant | Tonkatsu Restaurant | Trattoria/Osteria
        Turkish Home Cooking Restaurant
        Turkish Restaurant | Udon Restaurant | Ukrainian Restaurant | Unagi Restaurant
        Varenyky Restaurant | Vegetarian / Vegan Restaurant | Vietnamese Restaurant | Winery
        Wings Joint | Xinjiang Restaurant | Yakitori Restaurant | Yogurt | Yoshoku Restaurant
        Yunnan Restaurant | Zhejiang Restaurant
    """,
    NIGHTLIFE: """
        Bar | Beach Bar | Beer Bar | Beer Garden | Brewery | Champagne Bar | Cocktail Bar
        Dive Bar | Gay Bar | Hookah Bar | Hotel Bar | Karaoke Bar | Lounge | Night Market
        Nightclub | Other Nightlife | Pub | Sake Bar | Speakeasy | Sports Bar | Strip Club
        Tiki Bar | Whisky Bar | Wine Bar
    """,
    OUTDOORS: """
        Apres Ski Bar | Athletic & Sport | Athletics & Sports | Badminton Court | Baseball Field
        Basketball Court | Bathing Area | Bay | Beach | Bike Trail | Bocce Court
        Botanical Garden | Boxing Gym | Bridge | Campground | Canal | Castle | Cave | Cemetery
        City
        Climbing Gym | County | Country | Curling Ice | Cycle Studio | Dive Spot | Dog Run | Farm
        Field | Fishing Spot | Forest | Fountain | Garden | Golf Course | Gun Range | Gym
        Gym / Fitness Center | Gym Pool | Gymnastics Gym | Harbor / Marina | Hiking Trail
        Hockey Field | Hockey Rink | Hot Spring | Indoor Play Area | Island | Lake | Lighthouse
        Martial Arts Dojo | Mountain | National Park | Nature Preserve | Neighborhood
        Nudist Beach | Other Great Outdoors | Outdoor Gym | Paintball Field | Palace | Park
        Pedestrian Plaza | Pilates Studio | Playground | Plaza | Pool | Rafting | Recreation Center
        Reservoir | River | Rock Climbing Spot | Roof Deck | Rugby Pitch | Scenic Lookout
        Sculpture Garden | Skate Park | Skating Rink | Ski Area | Ski Chairlift | Ski Chalet
        Ski Lodge | Ski Trail | Skydiving Drop Zone | Soccer Field | Squash Court | Stables | State
        States & Municipalities | Summer Camp | Surf Spot | Tennis | Tennis Court | Town | Track
        Trail | Tree | Village | Vineyard | Volcano | Volleyball Court | Waterfall | Waterfront
        Well | Windmill | Yoga Studio
    """,
    PROFESSIONAL: """
        Acupuncturist | Advertising Agency | Alternative Healer | Animal Shelter | Auditorium
        Ballroom | Blood Donation Center | Buddhist Temple | Building | Business Center
        Business Service | Campaign Office | Capitol Building | Chiropractor | Church
        Circus School | City Hall | Club House | Community Center | Conference Room
        Convention Center | Corporate Cafeteria | Corporate Coffee Shop | Courthouse
        Coworking Space | Cultural Center | Dentist's Office | Distribution Center
        Doctor's Office | Driving School | Elementary School | Embassy / Consulate
        Emergency Room | Event Space | Eye Doctor | Factory | Fair | Fire Station | Flight School
        Government Building | High School | Hindu Temple | Hospital | Hospital Ward
        Industrial Estate | Kingdom Hall | Laboratory | Language School | Library
        Maternity Clinic | Medical Center | Medical Lab | Meeting Room | Mental Health Office
        Middle School | Military Base | Monastery | Monument / Landmark | Mosque | Music School
        Non-Profit | Nursery School | Observatory | Office | Outdoor Event Space | Parking
        Physical Therapist | Police Station | Post Office | Prayer Room | Preschool | Prison
        Private School | Radio Station | Recruiting Agency | Rehab Center | Religious School
        School | Shrine | Social Club | Spiritual Center | Swim School | Synagogue
        TV Station | Tech Startup | Temple | Town Hall | Urgent Care Center | Veterinarian
        Voting Booth | Warehouse | Wedding Hall
    """,
    RESIDENCE: """
        Assisted Living | Home (private) | Housing Development
        Residential Building (Apartment / Condo) | Trailer Park
    """,
    SHOP: """
        ATM | Accessories Store | Adult Boutique | Antique Shop | Arts & Crafts Store
        Astrologer | Athletic Supply | Auto Dealership | Auto Garage | Auto Workshop
        Automotive Shop | Baby Store | Bank | Batik Shop | Beer Store | Big Box Store | Bike Shop
        Board Shop
        Bookstore | Botanical Shop | Boutique | Bridal Shop | Business Supplies | Butcher
        Camera Store | Candy Store | Car Dealership | Car Wash | Carpet Store
        Check Cashing Service
        Cheese Shop | Child Care Service | Chocolate Shop | Christmas Market | Clothing Store
        Coffee Roaster | Comic Shop | Construction & Landscaping | Convenience Store
        Cosmetics Shop | Costume Shop | Credit Union | Currency Exchange | Dairy Store | Daycare
        Department Store | Design Studio | Discount Store | Dive Shop | Drugstore / Pharmacy
        Dry Cleaner | Duty-free Shop | EV Charging Station | Electronics Store | Fabric Shop
        Farmers Market | Film Studio | Financial or Legal Service | Fireworks Store | Fish Market
        Fishing Store | Flea Market | Floating Market | Flower Shop | Food & Drink Shop
        Frame Store | Fruit & Vegetable Store | Funeral Home | Furniture / Home Store
        Gaming Cafe | Garden Center | Gas Station / Garage | Gift Shop | Gourmet Shop
        Grocery Store | Gun Shop | Hardware Store | Health & Beauty Service | Health Food Store
        Herbs & Spices Store | Hobby Shop | Home Service | Hunting Supply | IT Services
        Insurance Office | Internet Cafe | Jewelry Store | Kids Store | Kitchen Supply Store
        Knitting Store | Laundromat | Laundry Service | Lawyer | Leather Goods Store
        Lingerie Store
        Liquor Store | Locksmith | Lottery Retailer | Luggage Store | Mall | Marijuana Dispensary
        Market | Massage Studio | Mattress Store | Men's Store | Miscellaneous Shop
        Mobile Phone Shop | Motorcycle Shop | Music Store | Nail Salon | Newsstand
        Notary | Optical Shop | Organic Grocery | Other Repair Shop | Outdoor Supply Store
        Outlet Mall | Outlet Store | Paper / Office Supplies Store | Pawn Shop | Perfume Shop
        Pet Service | Pet Store | Pharmacy | Photography Lab | Photography Studio | Piercing Parlor
        Pop-Up Shop | Print Shop | Public Bathroom | Real Estate Office | Record Shop
        Recording Studio | Recycling Facility | Rental Service | Salon / Barbershop | Shipping Store
        Shoe Repair | Shoe Store | Shopping Plaza | Skate Shop | Ski Shop | Smoke Shop
        Smoothie Shop | Souvenir Shop | Spa / Massage | Sporting Goods Shop | Stationery Store
        Storage Facility | Street Food Gathering | Supermarket | Supplement Shop | Tailor Shop
        Tanning Salon | Tattoo Parlor | Thrift / Vintage Store | Toy / Game Store | Travel Agency
        Used Bookstore | Video Game Store | Video Store | Warehouse Store | Watch Repair Shop
        Wine Shop | Women's Store
    """,
    TRAVEL: """
        Airport | Airport Food Court | Airport Gate | Airport Lounge | Airport Service
        Airport Terminal | Airport Ticket Counter | Airport Tram | Baggage Claim | Bed & Breakfast
        Bike Rental / Bike Share | Boarding House | Boat Rental | Boat or Ferry | Border Crossing
        Bus Line | Bus Station | Bus Stop | Cable Car | Cruise | Cruise Ship | Ferry
        General Travel
        Heliport | Hostel | Hotel | Hotel Pool | Intersection | Light Rail | Metro Station | Motel
        Moving Target | Pier | Plane | Platform | Port | RV Park | Rental Car Location | Resort
        Rest Area | Road | Roadside | Street | Subway | Taxi | Taxi Stand | Toll Booth | Toll Plaza
        Tourist Information Center | Train | Train Station | Tram Station | Transportation Service
        Travel Lounge | Truck Stop | Tunnel | Vacation Rental
    """,
}

UNPLACED: Final[dict[str, str]] = {}
"""Leaf names of the real files that fit no top category, with the reason."""


def leaves(top: str) -> tuple[str, ...]:
    """The known leaf names below a top category."""
    return tuple(
        part.strip() for line in _LEAVES[top].strip().splitlines() for part in line.split("|")
    )


def top_category(leaf: str) -> str | None:
    """The top category of a leaf name (or of a top name); None where it is not known."""
    return _INDEX.get(_folded(leaf))


def with_top_categories(dataset: Dataset) -> Dataset:
    """The same data set with leaf categories replaced by top ones; unknown leaves are left out."""
    if dataset.item_categories is None:
        return dataset
    tops = {leaf: top_category(leaf) for row in dataset.item_categories for leaf in row}
    rolled = tuple(
        tuple(dict.fromkeys(top for leaf in row if (top := tops[leaf]) is not None))
        for row in dataset.item_categories
    )
    return replace(dataset, item_categories=rolled)


def _folded(leaf: str) -> str:
    plain = unicodedata.normalize("NFKD", leaf).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", " ", plain.lower()).strip()


def _stripped(leaf: str) -> str:
    # Some copies lost their accented letters altogether: "Café" reads "Caf" and control characters.
    return _folded(leaf.encode("ascii", "ignore").decode())


_INDEX: Final[dict[str, str]] = {
    key: top
    for top in TOP_CATEGORIES
    for leaf in (*leaves(top), top)
    for key in (_folded(leaf), _stripped(leaf))
}
