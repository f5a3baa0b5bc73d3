"""Groups of words of everyday English with a related meaning: a weak hint where request and template share no word.

The groups were written for this project, from general knowledge and not from the requests of any collection.
"""

from __future__ import annotations

from functools import cache

from evaluator.library.words import stem

_GROUPS = """
    travel trip journey tour vacation holiday tourism itinerary destination visit getaway sightseeing traveller
    flight airline airport plane fly airfare aviation airplane
    hotel accommodation hostel lodging room stay motel airbnb resort
    book reserve reservation booking appointment schedule
    train railway bus transit transport metro subway commute transportation
    car vehicle automobile auto truck driving motor garage motorcycle
    drive route direction navigate map road traffic
    location place address geographic coordinate latitude longitude position nearby area region
    city town municipality village urban
    country nation national state
    restaurant dining diner cafe eatery dine
    food meal dish cuisine eat dinner lunch breakfast snack nutrition
    recipe cook cooking ingredient bake kitchen chef
    drink wine beer cocktail coffee tea beverage
    weather forecast temperature rain climate humidity wind snow storm sunny meteorology
    money cash fund finance financial dollar
    currency dollar euro pound yen exchange forex
    price cost fee charge rate fare expensive cheap pricing
    discount coupon deal promotion sale offer voucher cheap bargain promo
    buy purchase shop shopping order store product retail ecommerce merchandise
    sell seller vendor sale merchant
    pay payment checkout transaction transfer
    invoice bill receipt
    bank account deposit balance banking
    loan mortgage credit debt lend borrow
    stock share equity ticker trading nasdaq investor
    invest investment portfolio asset fund investor
    crypto cryptocurrency bitcoin ethereum blockchain token nft coin wallet
    tax taxation vat deduction
    salary wage income payroll pay earnings
    insurance policy coverage premium claim
    house home property apartment rent estate realty housing residence flat
    job career employment vacancy hiring occupation position work recruit
    resume cv curriculum candidate applicant
    company business firm corporation enterprise organization startup corporate
    employee staff worker colleague personnel
    customer client buyer consumer user
    market marketing advertise advertising campaign brand promotion
    manager boss director executive leader
    school education teach teacher student classroom lesson tutor academic
    course class training tutorial learn learning study lecture
    university college degree campus
    exam test quiz assessment exercise
    paper article publication journal research scholarly academic study arxiv scientific
    book novel read reading author literature library
    story tale narrative fiction plot
    poem poetry verse rhyme
    write author compose draft writing writer
    text passage paragraph content document
    document file pdf paper
    summary summarise abstract overview gist digest condense shorten brief
    translate translation translator interpret
    language english french spanish german chinese japanese italian linguistic multilingual
    word vocabulary dictionary definition meaning synonym thesaurus
    grammar spelling proofread correct punctuation
    rewrite rephrase paraphrase reword
    explain explanation clarify describe
    idea inspiration brainstorm creative creativity
    recommend recommendation suggest suggestion advice advise tip personalized
    find search lookup locate seek discover query
    compare comparison versus difference similar
    show display view list
    create generate make build produce generator
    change modify edit update alter adjust
    delete remove erase clear
    add insert append include
    send deliver dispatch
    begin start launch initiate open
    stop end cancel terminate close
    increase raise grow growth rise
    decrease reduce lower drop
    convert transform conversion converter
    calculate compute calculation calculator
    check verify validate confirm
    fix repair solve troubleshoot
    save store keep archive
    analyse analysis analytics insight statistics examine
    math mathematics mathematical algebra equation arithmetic calculus formula
    number numeric digit integer
    sum total add addition
    average mean median
    probability chance odds likelihood statistics
    geometry triangle circle rectangle area angle
    chart graph plot diagram visualise visualisation flowchart
    table spreadsheet excel csv column
    data dataset database record
    database sql query table
    code program programming software developer coding script
    bug error debug issue exception
    github git repository commit
    website site web webpage url link domain page
    internet online web browser
    seo keyword ranking backlink traffic
    server host hosting cloud deploy
    network ip router wifi connection
    password login authentication credential account secure
    security secure threat vulnerability hack malware cybersecurity
    computer laptop pc desktop device hardware
    phone mobile smartphone telephone iphone android
    app application software
    ai artificial gpt chatbot llm model prompt
    image picture photo photograph photography illustration gallery
    draw drawing art artist artwork painting sketch
    design designer logo style graphic
    colour color palette shade
    video clip youtube footage movie stream
    movie film cinema actor hollywood
    tv television show series episode stream streaming
    music song album artist track playlist band singer melody lyrics
    audio sound voice podcast speech listen
    concert festival event ticket show
    event meeting conference gathering occasion
    game gaming gamer play player puzzle
    sport football soccer basketball baseball tennis cricket hockey league team match tournament athlete
    score result standing ranking
    news headline press article journalism latest
    message text sms chat messaging
    email mail inbox mailbox
    contact person phone address
    call dial phone
    social twitter facebook instagram tweet post
    friend family relative partner
    person people human individual
    child kid baby children infant toddler parenting
    woman female girl
    man male boy
    marriage wedding bride
    date dating relationship romantic love
    gift present birthday
    party celebration celebrate
    joke humor funny laugh
    emotion feeling mood sentiment happy sad
    health medical medicine doctor patient disease symptom hospital clinic healthcare physician illness
    drug medication pharmacy prescription dose
    diet calorie nutrition weight protein
    fitness exercise workout gym training
    sleep bedtime rest alarm
    meditation mindfulness relax stress anxiety
    therapy mental psychology counseling
    body blood heart organ
    beauty makeup cosmetic skincare hair
    clothes clothing fashion outfit dress wear shoe
    law legal lawyer attorney court statute
    contract agreement terms
    crime police criminal offence
    government policy public official
    politics political election vote candidate
    history historical ancient past century
    religion bible church god prayer spiritual
    astrology horoscope zodiac tarot
    science physics chemistry scientific biology
    chemical molecule compound element
    gene protein dna genome sequence
    space planet star astronomy satellite nasa
    nature environment environmental climate ecology
    energy power electricity solar fuel
    plant garden gardening flower tree
    animal pet dog cat bird wildlife species
    farm agriculture crop
    water river ocean sea lake
    time hour minute clock timezone
    day week month year date calendar
    calendar schedule agenda event meeting
    task todo project plan planning planner
    remind reminder alarm notify notification alert
    goal objective target
    plan strategy roadmap
    team group collaborate collaboration
    question answer ask inquiry faq
    information knowledge fact detail
    random shuffle dice roll
    review rating feedback opinion evaluate
    best top popular favorite trending
    new latest recent current
    big large huge
    small little tiny
    fast quick speed rapid
    list enumerate collection
    size length width height dimension
    weight mass kilogram pound
    distance kilometer mile far
    light lamp brightness
    temperature heat celsius fahrenheit thermostat
    package parcel shipping shipment delivery tracking courier
    factory manufacturing production industry
    machine equipment tool appliance
    furniture sofa chair decor interior
    clean cleaning wash laundry
    emergency urgent danger
    war military army weapon
    charity donation donate volunteer
    letter essay report blog
    presentation slide powerpoint
    form survey questionnaire poll
    key secret token
    user member profile account
    export download save
    import upload attach
    compress zip archive
    encrypt cipher hash decrypt
    qr barcode scan
    job task assignment
    label tag classify category
    extract parse scrape
    sentence phrase line
    name title label
    id identifier number
    error mistake wrong
    lost missing stolen
    broken damaged
    old age elderly birthday
"""


@cache
def _groups_by_stem() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(_GROUPS.strip().splitlines()):
        for each in dict.fromkeys(map(stem, line.split())):
            found[each] = (*found.get(each, ()), f"~{number}")
    return found


def groups(stemmed: str) -> tuple[str, ...]:
    """The terms of the groups that the word with this stem belongs to."""
    return _groups_by_stem().get(stemmed, ())
