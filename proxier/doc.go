// Package proxier holds one node's kernel to the services it was given.
//
//	source ──► Tracker ──► Resolve ──► Backend.Sync ──► kernel
//	           who has      policy,     one language each
//	           which claim  once
//
// Every choice of policy (which endpoints are usable, what an empty service
// answers, whom to masquerade, what is local) is made once, in Resolve. A
// Backend only says the resulting State in its own kernel's language.
package proxier
