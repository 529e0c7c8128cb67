// The provider of a page on loopback: each call is one request to the agent.

import { said } from "./words.js";

/** Why a call gave nothing: the session is over, the agent has gone, another window was first, or a
 * sentence of the agent's. */
export class Trouble extends Error {
	/** @param {"over" | "gone" | "changed" | "said"} kind @param {Said} what */
	constructor(kind, what) {
		super(kind);
		this.kind = kind;
		this.said = what;
	}
}

const SHORT = 8000;
const LONG = 60000;

/**
 * The provider of a page on an agent's loopback API.
 * @param {string} token the session's token against forged requests
 * @returns {Provider}
 */
export function loopback(token) {
	/** @param {string} path @param {RequestInit} [options] @param {number} [patience] */
	async function call(path, options = {}, patience = SHORT) {
		let response;
		try {
			response = await fetch(path, {
				...options,
				cache: "no-store",
				credentials: "same-origin",
				redirect: "error",
				signal: AbortSignal.timeout(patience),
			});
		} catch (error) {
			const late = error instanceof DOMException && error.name === "TimeoutError";
			throw new Trouble("gone", said(late ? "trouble.slow" : "trouble.agent_stopped"));
		}
		if (response.ok) return response;
		const body = await response.json().catch(() => ({}));
		if (response.status === 401 || response.status === 403) {
			throw new Trouble("over", said("trouble.session"));
		}
		if (response.status === 409) throw new Trouble("changed", body.error ?? said("trouble.other_tab"));
		throw new Trouble("said", body.error ?? said("trouble.unexpected"));
	}

	/** @param {string} path @param {Record<string, string | number>} [asked] */
	const read = (path, asked = {}) =>
		call(`api/${path}?${new URLSearchParams(Object.entries(asked).map(([k, v]) => [k, String(v)]))}`);

	/** @param {string} path @param {unknown} body @param {number} [patience] */
	const post = async (path, body, patience) =>
		(
			await call(
				`api/${path}`,
				{
					method: "POST",
					body: JSON.stringify(body),
					headers: {
						"Content-Type": "application/json",
						"X-Sottovoce-Token": token,
					},
				},
				patience,
			)
		).json();

	return {
		words: async (language) => (await call(`words/${language}.json`)).json(),
		glossary: async () => (await call("words/glossary.json")).json(),
		state: async () => (await read("state")).json(),
		weigh: (store, change) => post("weigh", { store, change }),
		choose: (store, change) => post("choose", { store, change }),
		things: async (store, asked) => (await read("things", { store, ...asked })).json(),
		preview: (store) => post("preview", { store }, LONG),
		body: async (store, index) => (await read("preview/body", { store, index })).arrayBuffer(),
		send: (store, nonce) => post("send", { store, nonce }, LONG),
		ledger: async (store, asked) => (await read("ledger", { store, ...asked })).json(),
		row: async (store, row) => (await read("ledger/row", { store, row })).json(),
		export: async (store, format) => (await read("ledger/export", { store, format })).blob(),
		agree: (store, digest) => post("agree", { store, digest }),
		stop: (store, everything) => post("stop", { store, everything }),
		start: (store) => post("start", { store }),
		remove: (store, items) => post("remove", { store, items }),
		erase: (store, what) => post("erase", { store, what }, LONG),
		learn: (store) => post("learn", { store }, LONG),
		learnt: async (store) => (await read("learn", { store })).json(),
		recommend: (store, change) => post("recommend", { store, change }, LONG),
	};
}
