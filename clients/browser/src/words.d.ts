/** Sentences of the catalogue by language and key: those that the build puts in. */
declare module "sottovoce:words" {
  const words: Readonly<Record<string, Readonly<Record<string, string>>>>;
  export default words;
}

/** All sentences of the catalogue by file: languages and the glossary. */
declare module "sottovoce:sentences" {
  const sentences: Readonly<Record<string, unknown>>;
  export default sentences;
}

/** The style of the consent centre. */
declare module "sottovoce:style" {
  const style: string;
  export default style;
}
