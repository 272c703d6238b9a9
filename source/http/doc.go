// Package http follows service files on web servers. It implements remote.Fetcher.
//
//	url        parses URLs, which are the names of texts
//	index      parses an index: texts by name and hash, and a version that must rise
//	signature  verifies minisign signatures of indexes and texts
//	marks      saves the highest version of each signed URL in the state directory
//	client     sends one request and reads one bounded answer
//	site       follows one URL: polls, verifies, and fetches the texts that differ
//	fetcher    combines all URLs into one remote.Set
//
// Stale beats partial. If any part of an answer is refused, nothing changes. An answer is refused when it is missing, too
// large, truncated, older than the one in use, or lacks the required hash or signature.
package http
