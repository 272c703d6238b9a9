// Package http follows service files on web servers: a remote.Fetcher.
//
//	url        names of texts: which URLs there are
//	index      a list of texts, by name and hash, with a version that rises
//	signature  minisign: who vouches for an index or a text
//	marks      highest version of each signed URL ──► state directory
//	client     one bounded answer of one server
//	site       one URL: poll, verify, fetch what differs
//	fetcher    all URLs ──► one remote.Set
//
// Stale beats partial. An answer that is refused in any part changes nothing: not found, too large, cut off, of an older
// version, without the hash or the signature that it must have.
package http
