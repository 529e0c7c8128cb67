/** Sentences of the catalogue by language and key: those that the build puts in. */
declare module "sottovoce:words" {
  const words: Readonly<Record<string, Readonly<Record<string, string>>>>;
  export default words;
}
