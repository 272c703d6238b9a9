// Package wording holds the text of the project to one vocabulary, in names of files and
// identifiers too, word by word: banned.txt lists what is not written here, and what is
// written in its place. The words of the domain are in the package doc of proxier.
package wording
