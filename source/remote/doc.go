// Package remote has what a source needs that hears of services from a server,
// whatever it speaks with it.
//
//	Pacer      when to ask a server that fails
//	State      the connection, and what of which object is not used, for status
//	Deadline   a timer that is only brought forward
//	Answer     whether what a server lists is held until it is confirmed
//	Publisher  services ──► sink, in steps; endpoints that move are waited for
//	Fetcher    follows the service files on a server, as complete sets of texts
//	Keeper     what was handed on ──► state directory, for a start without the server
//
// Stale beats partial: what cannot be reached takes nothing away.
package remote
