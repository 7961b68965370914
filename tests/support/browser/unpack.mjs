// Unpacks the Chromium of @sparticuz/chromium into a folder: node unpack.mjs FOLDER
import { createReadStream, createWriteStream } from "node:fs";
import { pipeline } from "node:stream/promises";
import { createBrotliDecompress } from "node:zlib";

const [folder] = process.argv.slice(2);
for (const name of ["chromium", "al2023.tar", "fonts.tar"]) {
  const packed = createReadStream(`${folder}/node_modules/@sparticuz/chromium/bin/${name}.br`);
  await pipeline(packed, createBrotliDecompress(), createWriteStream(`${folder}/${name}`));
}
